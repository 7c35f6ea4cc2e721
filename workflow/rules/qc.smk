rule qc_register:
    input:
        reference=files.reference_plane,
        moving=files.of_reference_channel(layout.plane),
        transform=layout.transform,
    output:
        register_json=layout.qc("register", "json"),
        register_png=quality_picture("register"),
    log:
        layout.log("qc_register", CYCLE),
    benchmark:
        layout.benchmark("qc_register", CYCLE)
    priority: AFTER_STITCH
    conda:
        "../envs/tilewright.yaml"
    threads: threads("qc_register")
    resources:
        **resources_of("qc_register"),
    params:
        stages=["register"],
        channels=[],
    script:
        "../../scripts/quality.py"


rule qc_subtract:
    input:
        subtraction=layout.subtraction,
    output:
        subtract_json=layout.qc("subtract", "json"),
        subtract_png=quality_picture("subtract"),
    log:
        layout.log("qc_subtract", CYCLE),
    benchmark:
        layout.benchmark("qc_subtract", CYCLE)
    conda:
        "../envs/tilewright.yaml"
    threads: threads("qc_subtract")
    resources:
        **resources_of("qc_subtract"),
    params:
        stages=["subtract"],
        channels=lambda wildcards: [
            (name, "") for name in files.subtracted(int(wildcards.cycle))
        ],
    script:
        "../../scripts/quality.py"


rule report:
    input:
        numbers=files.stage_quality("json"),
        pictures=files.stage_quality("png"),
        images=[
            layout.image_zarr.format(sample=sample) for sample in experiment.samples
        ],
        planes=files.planes(layout.plane),
    output:
        html=report(layout.report, caption="../report/report.rst", category="Summary"),
    log:
        layout.log("report", "all"),
    benchmark:
        layout.benchmark("report", "all")
    conda:
        "../envs/tilewright.yaml"
    threads: threads("report")
    resources:
        **resources_of("report"),
    params:
        samples=list(experiment.samples),
        waiting=experiment.waiting_cycles,
        channels=experiment.channel_table(),
        reference_cycle=experiment.reference_cycle,
        reference_channels=experiment.reference_channels,
        # A function: Snakemake takes braces in a plain string for wildcards.
        config=lambda wildcards: experiment.as_yaml(),
        thresholds=experiment.thresholds(),
        # No input: it grows with each run, and no report is made again for that. A function of
        # the output: nor where it lies elsewhere.
        ledger=lambda wildcards, output: str(layout.ledger),
    script:
        "../../scripts/report.py"


rule summary:
    input:
        files.stage_quality("json"),
    output:
        json=layout.qc_json,
        csv=layout.qc_csv,
    log:
        layout.log("summary", "all"),
    benchmark:
        layout.benchmark("summary", "all")
    localrule: True
    conda:
        "../envs/tilewright.yaml"
    threads: threads("summary")
    resources:
        **resources_of("summary"),
    params:
        channels=experiment.channel_table(),
        thresholds=experiment.thresholds(),
    script:
        "../../scripts/summary.py"


# With `qc.on_fail: stop` this rule fails when a verdict does; the report is there by then.
rule verdict:
    input:
        quality=layout.qc_json,
        report=layout.report,
    output:
        layout.trusted_markers,
    log:
        layout.log("verdict", "all"),
    benchmark:
        layout.benchmark("verdict", "all")
    localrule: True
    conda:
        "../envs/tilewright.yaml"
    threads: threads("verdict")
    resources:
        **resources_of("verdict"),
    params:
        channels=experiment.channel_table(),
        on_fail=experiment.settings.qc.on_fail,
    script:
        "../../scripts/verdict.py"
