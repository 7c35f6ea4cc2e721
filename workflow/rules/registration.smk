rule register:
    input:
        reference=files.reference_plane,
        moving=files.of_reference_channel(layout.plane),
    output:
        transform=layout.transform,
        numbers=layout.transform_json,
    log:
        layout.log("register", CYCLE),
    benchmark:
        layout.benchmark("register", CYCLE)
    priority: AFTER_STITCH
    conda:
        "../envs/tilewright.yaml"
    threads: threads("register")
    resources:
        **resources_of("register"),
    params:
        options=lambda wildcards: experiment.register_options(wildcards.cycle),
    script:
        "../../scripts/register.py"


rule resample:
    input:
        planes=files.of_image_channels(layout.plane),
        transform=files.of_moving_cycle(layout.transform),
        frame=files.reference_plane,
        backgrounds=files.of_backgrounds(layout.plane),
        background_transforms=files.of_backgrounds(
            layout.transform, experiment.moving_cycles
        ),
    output:
        zarr=directory(layout.registered_cycle),
        subtraction=layout.subtraction,
        subtraction_json=layout.subtraction_json,
    log:
        layout.log("resample", CYCLE),
    benchmark:
        layout.benchmark("resample", CYCLE)
    priority: AFTER_STITCH
    conda:
        "../envs/tilewright.yaml"
    threads: threads("resample")
    resources:
        **resources_of("resample"),
    params:
        # Names enter in `assemble`: another one resamples nothing.
        channels=lambda wildcards: experiment.image_channels(int(wildcards.cycle)),
        reference_cycle=experiment.reference_cycle,
        output=experiment.options("output", "ome_zarr_version"),
    script:
        "../../scripts/resample.py"


rule assemble:
    input:
        lambda wildcards: expand(
            layout.registered_cycle,
            sample=wildcards.sample,
            cycle=experiment.image_cycles,
        ),
    output:
        tiff=layout.image_tiff,
        zarr=directory(layout.image_zarr),
        markers=layout.image_markers,
    log:
        layout.log("assemble", "{sample}"),
    benchmark:
        layout.benchmark("assemble", "{sample}")
    priority: AFTER_STITCH
    conda:
        "../envs/tilewright.yaml"
    threads: threads("assemble")
    resources:
        **resources_of("assemble"),
    params:
        cycles=experiment.image_cycles,
        # A function: a name may have braces.
        names=lambda wildcards: [entry["marker"] for entry in experiment.image_table()],
    script:
        "../../scripts/assemble.py"
