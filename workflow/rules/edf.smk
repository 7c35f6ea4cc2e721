rule project:
    input:
        unpack(lambda wildcards: experiment.files("deconvolve", wildcards)),
        mosaic=layout.deconvolve if DECONVOLVED else layout.stitch,
        focus=layout.deconvolve_focus if DECONVOLVED else [],
    output:
        plane=directory(layout.edf),
        height=layout.height,
    log:
        layout.log("project", PLANE),
    benchmark:
        layout.benchmark("project", PLANE)
    conda:
        "../envs/tilewright.yaml"
    threads: threads("project")
    resources:
        **routed("project"),
    params:
        optics=lambda wildcards: experiment.optics_of(
            wildcards.cycle, wildcards.channel
        ),
        options=experiment.options("edf"),
        output=experiment.options("output", "ome_zarr_version"),
    script:
        "../scripts/project.py"
