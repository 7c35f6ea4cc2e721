rule illumination:
    input:
        unpack(files.flat_fields),
        manifest=files.of_scan(layout.manifest),
    output:
        flat=illumination_outputs(layout.flat),
        dark=illumination_outputs(layout.dark),
        numbers=illumination_outputs(layout.illumination_json),
    log:
        layout.log("illumination", ILLUMINATION_WILDCARDS),
    benchmark:
        layout.benchmark("illumination", ILLUMINATION_WILDCARDS)
    conda:
        "../envs/tilewright.yaml"
    threads: threads("illumination")
    resources:
        **resources_of("illumination"),
    params:
        channels=files.channels_of_cycle,
        reference_channel=files.reference_channel,
        positions=experiment.options(
            "tile_positions", "max_shift_px", "sigma_px", "planes"
        ),
        options=experiment.options("illumination", "method", "planes"),
        camera=experiment.options("camera", "offset_counts", "saturation_counts"),
    script:
        "../../scripts/illumination.py"


rule tile_positions:
    input:
        manifest=layout.manifest,
        flat=files.flat_of_reference(layout.flat),
        dark=files.flat_of_reference(layout.dark),
    output:
        positions=layout.positions,
        edges=layout.edges,
        tile_configuration=layout.tile_configuration,
        distortion=layout.distortion,
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
        manifest=layout.manifest,
        positions=layout.positions,
        distortion=layout.distortion,
        flat=files.flat_of_channel(layout.flat),
        dark=files.flat_of_channel(layout.dark),
        numbers=files.flat_of_channel(layout.illumination_json),
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
        options=experiment.options("stitch"),
        output=experiment.options("output", "chunk_px", "ome_zarr_version"),
    script:
        "../../scripts/stitch.py"
