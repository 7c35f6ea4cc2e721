# All stages of a cycle's own images at once: a job takes as long to start as one stage to judge.
rule qc_cycle:
    input:
        unpack(files.calibration),
        manifest=layout.manifest,
        mosaic=files.of_cycle(layout.mosaic),
        deconvolved=(
            files.of_cycle(layout.deconvolved_mosaic) if PLANE_OF_DECONVOLVED else []
        ),
        plane=files.of_cycle(layout.plane),
        height=files.of_cycle(layout.height),
    output:
        illumination_json=layout.qc("illumination", "json"),
        illumination_png=quality_picture("illumination"),
        tile_positions_json=layout.qc("tile_positions", "json"),
        tile_positions_png=quality_picture("tile_positions"),
        stitch_json=layout.qc("stitch", "json"),
        stitch_png=quality_picture("stitch"),
        deconvolve_json=(
            layout.qc("deconvolve", "json") if PLANE_OF_DECONVOLVED else []
        ),
        deconvolve_png=quality_picture("deconvolve") if PLANE_OF_DECONVOLVED else [],
        edf_json=layout.qc("edf", "json"),
        edf_png=quality_picture("edf"),
    log:
        layout.log("qc_cycle", CYCLE),
    benchmark:
        layout.benchmark("qc_cycle", CYCLE)
    priority: AFTER_STITCH
    conda:
        "../envs/tilewright.yaml"
    threads: threads("qc_cycle")
    resources:
        **resources_of("qc_cycle"),
    params:
        stages=[
            stage for stage in files.stages if stage not in ("register", "subtract")
        ],
        # Without markers, as there are no limits: what only names or judges is added when the
        # tables and the report are made, and a changed one makes no stack again.
        channels=lambda wildcards: [
            (name, "") for name in files.channels_of_cycle(wildcards)
        ],
    script:
        "../../scripts/quality.py"
