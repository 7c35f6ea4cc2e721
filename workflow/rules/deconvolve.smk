rule deconvolve:
    input:
        unpack(files.psf),
        mosaic=layout.mosaic,
    output:
        mosaic=stack(layout.deconvolved_mosaic),
    log:
        layout.log("deconvolve", PLANE),
    benchmark:
        layout.benchmark("deconvolve", PLANE)
    priority: AFTER_STITCH
    conda:
        "../envs/tilewright.yaml"
    threads: threads("deconvolve")
    resources:
        **resources_of("deconvolve"),
    params:
        optics=lambda wildcards: experiment.optics_of(
            wildcards.cycle, wildcards.channel
        ),
        options=experiment.options("deconvolve", "iterations"),
        output=experiment.options("output", "ome_zarr_version"),
    script:
        "../../scripts/deconvolve.py"
