# One job for all channels of a cycle: they share the places of the tiles, and of 9 cycles of 4
# channels 36 jobs become 9.
rule illumination:
    input:
        unpack(files.flat_fields),
        manifest=files.of_scan(layout.manifest),
    output:
        flat=layout.flat,
        dark=layout.dark,
        numbers=layout.illumination_json,
    log:
        layout.log("illumination", CYCLE),
    benchmark:
        layout.benchmark("illumination", CYCLE)
    conda:
        "../envs/tilewright.yaml"
    threads: threads("illumination")
    resources:
        **resources_of("illumination"),
    params:
        channels=files.channels_of_cycle,
        reference_channel=files.reference_channel,
        positions=experiment.options("tile_positions", "max_shift_px"),
        options=experiment.options("illumination", "method"),
        camera=experiment.options("camera", "offset_counts", "saturation_counts"),
    script:
        "../../scripts/illumination.py"


rule tile_positions:
    input:
        unpack(files.illumination),
        manifest=layout.manifest,
    output:
        positions=layout.positions,
        edges=layout.edges,
        tile_configuration=layout.tile_configuration,
    log:
        layout.log("tile_positions", CYCLE),
    benchmark:
        layout.benchmark("tile_positions", CYCLE)
    conda:
        "../envs/tilewright.yaml"
    threads: threads("tile_positions")
    resources:
        **resources_of("tile_positions"),
    params:
        reference_channel=files.reference_channel,
        options=experiment.options("tile_positions"),
    script:
        "../../scripts/tile_positions.py"


rule stitch:
    input:
        unpack(files.illumination),
        manifest=layout.manifest,
        positions=layout.positions,
    output:
        stack(layout.mosaic),
    log:
        layout.log("stitch", PLANE),
    benchmark:
        layout.benchmark("stitch", PLANE)
    priority: stitch_priority
    conda:
        "../envs/tilewright.yaml"
    threads: threads("stitch")
    resources:
        **resources_of("stitch"),
    params:
        voxel_um=experiment.voxel_um,
        shift_px=lambda wildcards: experiment.channel(
            int(wildcards.cycle), wildcards.channel
        ).shift_px,
        output=experiment.options("output", "ome_zarr_version"),
    script:
        "../../scripts/stitch.py"
