rule edf_plane:
    input:
        unpack(files.psf),
        mosaic=layout.deconvolved_mosaic if PLANE_OF_DECONVOLVED else layout.mosaic,
    output:
        plane=directory(layout.plane),
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
