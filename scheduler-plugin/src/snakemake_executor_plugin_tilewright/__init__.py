from snakemake_executor_plugin_slurm import Executor, ExecutorSettings, common_settings  # stand-in: not committed
