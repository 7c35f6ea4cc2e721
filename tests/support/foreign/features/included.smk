rule included:
    output:
        "included.txt",
    resources:
        mem_mb=500,
        runtime=5,
    shell:
        "echo included > {output}"
