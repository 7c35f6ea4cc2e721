# The inputs by which each quality rule judges, under the names that the stages' modules know.
QUALITY_INPUTS = {
    "qc_cycle": {
        "flat": of_cycle(layout.flat),
        "dark": of_cycle(layout.dark),
        "numbers": of_cycle(layout.illumination_json),
        "manifest": layout.manifest,
        "positions": layout.positions,
        "edges": layout.edges,
        "distortion": layout.distortion,
        "mosaic": of_cycle(layout.stitch),
        "deconvolved": of_cycle(layout.deconvolve) if PLANE_OF_DECONVOLVED else [],
        "plane": of_cycle(layout.edf),
        "height": of_cycle(layout.height),
    },
    "qc_register": {
        "reference": of_reference_channel(of_reference_cycle(layout.edf)),
        "moving": of_reference_channel(layout.edf),
        "transform": layout.transform,
    },
    "qc_image": {
        "zarr": layout.image_zarr,
        "tiff": layout.image_tiff,
        "stitched": layout.stitched_view,
        "transform": of_moving_cycle(layout.transform),
        "subtraction": layout.subtraction,
    },
}
if STITCHED:
    QUALITY_INPUTS["qc_cycle"] = {"plane": of_cycle(layout.edf)}
# Token and marker of the channels judged. Where stacks are read there is no marker, as there are
# no limits: what only names or judges is added when the tables and the report are made, and a
# changed one makes no stack again.
QUALITY_CHANNELS = {
    "qc_cycle": lambda wildcards: [
        (channel.channel, "")
        for channel in experiment.channels_of(int(wildcards.cycle))
    ],
    "qc_register": [],
    "qc_image": lambda wildcards: [
        (entry["channel"], entry["marker"])
        for entry in experiment.image_table(int(wildcards.cycle))
    ],
}
QUALITY_OPTIONS = {"qc_image": {"image_channels": experiment.image_table()}}


for name, stages in QUALITY_RULES.items():

    rule:
        name:
            name
        input:
            **QUALITY_INPUTS[name],
        output:
            **quality_outputs(stages),
        log:
            layout.log(name, CYCLE),
        benchmark:
            layout.benchmark(name, CYCLE)
        priority: AFTER_STITCH
        localrule: plan.beside(name)
        conda:
            "../envs/tilewright.yaml"
        threads: threads(name)
        resources:
            **routed(name),
        params:
            stages=[stage for stage in stages if stage in STAGES_JUDGED],
            channels=QUALITY_CHANNELS[name],
            options=QUALITY_OPTIONS.get(name, {}),
        script:
            "../../scripts/quality.py"


rule report:
    input:
        numbers=quality_of_stages("json"),
        pictures=quality_of_stages("png"),
        images=[
            layout.image_zarr.format(sample=sample) for sample in experiment.samples
        ],
        planes=planes(layout.edf),
    output:
        html=report(layout.report, caption="../report/report.rst", category="Summary"),
    log:
        layout.log("report", "all"),
    benchmark:
        layout.benchmark("report", "all")
    localrule: plan.beside("report")
    conda:
        "../envs/tilewright.yaml"
    threads: threads("report")
    resources:
        **routed("report"),
    params:
        samples=list(experiment.samples),
        waiting=experiment.waiting_cycles,
        channels=experiment.channel_table(),
        reference_cycle=experiment.reference_cycle,
        reference_channel=experiment.reference_channel,
        # A function: Snakemake takes braces in a plain string for wildcards.
        config=lambda wildcards: experiment.as_yaml(),
        thresholds=experiment.thresholds(),
        ledger=str(layout.ledger),
        devices=str(layout.device_evidence),
    script:
        "../../scripts/report.py"


rule summary:
    input:
        quality_of_stages("json"),
    output:
        json=layout.qc_json,
        csv=layout.qc_csv,
    log:
        layout.log("summary", "all"),
    benchmark:
        layout.benchmark("summary", "all")
    localrule: plan.beside("summary")
    conda:
        "../envs/tilewright.yaml"
    threads: threads("summary")
    resources:
        **routed("summary"),
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
    localrule: plan.beside("verdict")
    conda:
        "../envs/tilewright.yaml"
    threads: threads("verdict")
    resources:
        **routed("verdict"),
    params:
        channels=experiment.channel_table(),
        on_fail=experiment.settings.qc.on_fail,
    script:
        "../../scripts/verdict.py"
