# One job for all channels of a cycle, and all samples of its scan: tiles are read once, and share
# their places, flat-fields and camera. Of 9 cycles of 4 channels 36 jobs become 9.
rule calibrate:
    input:
        unpack(files.flat_fields),
        manifest=lambda wildcards: expand(
            layout.manifest,
            sample=experiment.scan_of(wildcards.sample),
            cycle=wildcards.cycle,
        ),
    output:
        flat=layout.flat,
        dark=layout.dark,
        numbers=layout.illumination_json,
        positions=layout.positions,
        edges=layout.edges,
        tile_configuration=layout.tile_configuration,
    log:
        layout.log("calibrate", CYCLE),
    benchmark:
        layout.benchmark("calibrate", CYCLE)
    conda:
        "../envs/tilewright.yaml"
    threads: threads("calibrate")
    resources:
        **resources_of("calibrate"),
    params:
        samples=lambda wildcards: experiment.scan_of(wildcards.sample),
        channels=files.channels_of_cycle,
        reference_channel=files.reference_channel,
        options=experiment.options("tile_positions")
        | experiment.options("illumination", "method")
        | experiment.options("camera", "offset_counts", "saturation_counts"),
    script:
        "../../scripts/calibrate.py"


rule stitch:
    input:
        unpack(files.calibration),
        manifest=layout.manifest,
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
