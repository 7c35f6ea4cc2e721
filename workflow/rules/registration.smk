rule register:
    input:
        reference=of_reference_channel(of_reference_cycle(layout.edf)),
        moving=of_reference_channel(layout.edf),
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
        **routed("register"),
    params:
        options=lambda wildcards: experiment.register_options(wildcards.cycle),
    script:
        "../scripts/register.py"


rule assemble:
    input:
        planes=lambda wildcards: planes(layout.edf, sample=wildcards.sample),
        transforms=lambda wildcards: expand(
            layout.transform, sample=wildcards.sample, cycle=experiment.moving_cycles
        ),
    output:
        tiff=layout.image_tiff,
        zarr=directory(layout.image_zarr),
        markers=layout.image_markers,
        subtraction=layout.subtraction if SUBTRACTED else [],
        subtraction_json=layout.subtraction_json if SUBTRACTED else [],
    log:
        layout.log("assemble", "{sample}"),
    benchmark:
        layout.benchmark("assemble", "{sample}")
    priority: AFTER_STITCH
    conda:
        "../envs/tilewright.yaml"
    threads: threads("assemble")
    resources:
        **routed("assemble"),
    params:
        channels=experiment.channel_table(),
        moving_cycles=experiment.moving_cycles,
        output=experiment.options(
            "output",
            "chunk_px",
            "ome_zarr_version",
            "tiff_compression",
            "tiff_tile_px",
        ),
    script:
        "../scripts/assemble.py"
