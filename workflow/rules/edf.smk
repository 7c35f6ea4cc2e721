rule edf_plane:
    input:
        unpack(lambda wildcards: experiment.files("deconvolve", wildcards)),
        mosaic=layout.deconvolve if PLANE_OF_DECONVOLVED else layout.stitch,
    output:
        plane=directory(layout.edf),
        height=layout.height,
    log:
        layout.log("edf_plane", PLANE),
    benchmark:
        layout.benchmark("edf_plane", PLANE)
    priority: AFTER_STITCH
    conda:
        "../envs/tilewright.yaml"
    threads: threads("edf_plane")
    resources:
        **resources_of("edf_plane"),
    params:
        optics=lambda wildcards: experiment.optics_of(
            wildcards.cycle, wildcards.channel
        ),
        method=experiment.settings.plane_method,
        output=experiment.options("output", "ome_zarr_version"),
    script:
        "../../scripts/edf_plane.py"
