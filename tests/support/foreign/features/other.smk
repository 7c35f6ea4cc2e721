"""A workflow of its own, that another takes in as a module."""


rule greeting:
    output:
        "module/greeting.txt",
    resources:
        mem_mb=500,
        runtime=5,
    shell:
        "echo hello > {output}"
