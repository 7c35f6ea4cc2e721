rule qc_illumination:
    input:
        flats=of_cycle(layout.flat),
        numbers=of_cycle(layout.illumination_json),
    output:
        numbers=layout.qc("illumination", "json"),
        picture=report(
            layout.qc("illumination", "png"),
            caption="../report/illumination.rst",
            category="{sample}",
            subcategory="illumination",
            labels={"cycle": "{cycle}"},
        ),
    log:
        layout.log("qc_illumination", CYCLE),
    benchmark:
        layout.benchmark("qc_illumination", CYCLE)
    conda:
        "../envs/tilewright.yaml"
    threads: threads("qc_illumination")
    resources:
        **routed("qc_illumination"),
    params:
        channels=lambda wildcards: experiment.tokens(wildcards.cycle),
        markers=lambda wildcards: experiment.markers(wildcards.cycle),
        thresholds=experiment.thresholds(),
    script:
        "../scripts/qc_illumination.py"


rule qc_tile_positions:
    input:
        positions=layout.positions,
        edges=layout.edges,
    output:
        numbers=layout.qc("tile_positions", "json"),
        picture=report(
            layout.qc("tile_positions", "png"),
            caption="../report/tile_positions.rst",
            category="{sample}",
            subcategory="tile_positions",
            labels={"cycle": "{cycle}"},
        ),
    log:
        layout.log("qc_tile_positions", CYCLE),
    benchmark:
        layout.benchmark("qc_tile_positions", CYCLE)
    conda:
        "../envs/tilewright.yaml"
    threads: threads("qc_tile_positions")
    resources:
        **routed("qc_tile_positions"),
    params:
        thresholds=experiment.thresholds(),
    script:
        "../scripts/qc_tile_positions.py"


rule qc_stitch:
    input:
        mosaics=of_cycle(layout.stitch),
        flats=of_cycle(layout.flat),
        darks=of_cycle(layout.dark),
        manifest=layout.manifest,
        positions=layout.positions,
    output:
        numbers=layout.qc("stitch", "json"),
        picture=report(
            layout.qc("stitch", "png"),
            caption="../report/stitch.rst",
            category="{sample}",
            subcategory="stitch",
            labels={"cycle": "{cycle}"},
        ),
    log:
        layout.log("qc_stitch", CYCLE),
    benchmark:
        layout.benchmark("qc_stitch", CYCLE)
    conda:
        "../envs/tilewright.yaml"
    threads: threads("qc_stitch")
    resources:
        **routed("qc_stitch"),
    params:
        channels=lambda wildcards: experiment.tokens(wildcards.cycle),
        markers=lambda wildcards: experiment.markers(wildcards.cycle),
        thresholds=experiment.thresholds(),
    script:
        "../scripts/qc_stitch.py"


rule qc_deconvolve:
    input:
        stitched=of_cycle(layout.stitch),
        deconvolved=of_cycle(layout.deconvolve),
    output:
        numbers=layout.qc("deconvolve", "json"),
        picture=report(
            layout.qc("deconvolve", "png"),
            caption="../report/deconvolve.rst",
            category="{sample}",
            subcategory="deconvolve",
            labels={"cycle": "{cycle}"},
        ),
    log:
        layout.log("qc_deconvolve", CYCLE),
    benchmark:
        layout.benchmark("qc_deconvolve", CYCLE)
    conda:
        "../envs/tilewright.yaml"
    threads: threads("qc_deconvolve")
    resources:
        **routed("qc_deconvolve"),
    params:
        channels=lambda wildcards: experiment.tokens(wildcards.cycle),
        markers=lambda wildcards: experiment.markers(wildcards.cycle),
        thresholds=experiment.thresholds(),
    script:
        "../scripts/qc_deconvolve.py"


rule qc_edf:
    input:
        planes=of_cycle(layout.edf),
        heights=of_cycle(layout.height),
    output:
        numbers=layout.qc("edf", "json"),
        picture=report(
            layout.qc("edf", "png"),
            caption="../report/edf.rst",
            category="{sample}",
            subcategory="edf",
            labels={"cycle": "{cycle}"},
        ),
    log:
        layout.log("qc_edf", CYCLE),
    benchmark:
        layout.benchmark("qc_edf", CYCLE)
    conda:
        "../envs/tilewright.yaml"
    threads: threads("qc_edf")
    resources:
        **routed("qc_edf"),
    params:
        channels=lambda wildcards: experiment.tokens(wildcards.cycle),
        markers=lambda wildcards: experiment.markers(wildcards.cycle),
        thresholds=experiment.thresholds(),
    script:
        "../scripts/qc_edf.py"


rule qc_register:
    input:
        reference=of_reference_channel(of_reference_cycle(layout.edf)),
        moving=of_reference_channel(layout.edf),
        transform=layout.transform,
    output:
        numbers=layout.qc("register", "json"),
        picture=report(
            layout.qc("register", "png"),
            caption="../report/register.rst",
            category="{sample}",
            subcategory="register",
            labels={"cycle": "{cycle}"},
        ),
    log:
        layout.log("qc_register", CYCLE),
    benchmark:
        layout.benchmark("qc_register", CYCLE)
    conda:
        "../envs/tilewright.yaml"
    threads: threads("qc_register")
    resources:
        **routed("qc_register"),
    params:
        thresholds=experiment.thresholds(),
    script:
        "../scripts/qc_register.py"


rule qc_image:
    input:
        unpack(of_moving_cycle(layout.transform)),
        zarr=layout.image_zarr,
        tiff=layout.image_tiff,
        mosaics=of_cycle(layout.stitch),
    output:
        numbers=layout.qc("image", "json"),
        picture=report(
            layout.qc("image", "png"),
            caption="../report/image.rst",
            category="{sample}",
            subcategory="image",
            labels={"cycle": "{cycle}"},
        ),
    log:
        layout.log("qc_image", CYCLE),
    benchmark:
        layout.benchmark("qc_image", CYCLE)
    conda:
        "../envs/tilewright.yaml"
    threads: threads("qc_image")
    resources:
        **routed("qc_image"),
    params:
        channels=lambda wildcards: experiment.tokens(wildcards.cycle),
        markers=lambda wildcards: experiment.markers(wildcards.cycle),
        image_channels=experiment.channel_table(),
        thresholds=experiment.thresholds(),
    script:
        "../scripts/qc_image.py"


rule report:
    input:
        numbers=quality_of_stages("json"),
        pictures=quality_of_stages("png"),
        images=[
            layout.image_zarr.format(sample=sample) for sample in experiment.samples
        ],
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
        **routed("report"),
    params:
        samples=list(experiment.samples),
        channels=experiment.channel_table(),
        reference_cycle=experiment.reference_cycle,
        reference_channel=experiment.reference_channel,
        # A function: Snakemake takes braces in a plain string for wildcards.
        config=lambda wildcards: experiment.as_yaml(),
        ledger=str(layout.ledger),
        devices=str(layout.device_evidence),
    script:
        "../scripts/report.py"


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
    conda:
        "../envs/tilewright.yaml"
    threads: threads("summary")
    resources:
        **routed("summary"),
    script:
        "../scripts/summary.py"


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
    conda:
        "../envs/tilewright.yaml"
    threads: threads("verdict")
    resources:
        **routed("verdict"),
    params:
        channels=experiment.channel_table(),
        on_fail=experiment.settings.qc.on_fail,
    script:
        "../scripts/verdict.py"
