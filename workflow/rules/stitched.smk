rule stitched_plane:
    input:
        manifest=layout.manifest,
    output:
        directory(layout.edf),
    log:
        layout.log("stitched_plane", PLANE),
    benchmark:
        layout.benchmark("stitched_plane", PLANE)
    conda:
        "../envs/tilewright.yaml"
    threads: threads("stitched_plane")
    resources:
        **routed("stitched_plane"),
    params:
        voxel_um=experiment.voxel_um,
        saturation_counts=experiment.options("camera")["saturation_counts"],
        output=experiment.options("output", "chunk_px", "ome_zarr_version"),
    script:
        "../../scripts/stitched_plane.py"
