"""Every path that the workflow writes, as templates with Snakemake's wildcards."""

from pathlib import Path


class Layout:
    """Path templates below the results folder.

    The templates hold ``{sample}``, ``{cycle}`` and ``{channel}``.

    >>> Layout("results").mosaic.format(sample="tonsil", cycle=2, channel="1")
    'results/tonsil/stitch/cycle2_channel1.zarr'
    """

    def __init__(self, results: str) -> None:
        self.results = results
        plane = "cycle{cycle}_channel{channel}"
        sample = f"{results}/{{sample}}"
        #: The checked list of raw planes of one cycle.
        self.manifest = f"{sample}/raw/cycle{{cycle}}.csv"
        #: Stem of the flat-fields, dark-fields and their numbers.
        self.illumination = f"{sample}/illumination/cycle{{cycle}}"
        #: The flat-fields (channel, y, x).
        self.flat = f"{self.illumination}-ffp.tif"
        #: The dark-fields (channel, y, x).
        self.dark = f"{self.illumination}-dfp.tif"
        #: How flat-fields were estimated, and their quality.
        self.illumination_json = f"{self.illumination}.json"
        #: Tile positions of one cycle.
        self.positions = f"{sample}/tile_positions/cycle{{cycle}}/positions.csv"
        #: Measured overlaps of one cycle.
        self.edges = f"{sample}/tile_positions/cycle{{cycle}}/edges.csv"
        #: The positions in Fiji's format.
        self.tile_configuration = f"{sample}/tile_positions/cycle{{cycle}}/TileConfiguration.txt"
        #: The mosaic z-stack.
        self.mosaic = f"{sample}/stitch/{plane}.zarr"
        #: The deconvolved mosaic z-stack.
        self.deconvolved_mosaic = f"{sample}/deconvolve/{plane}.zarr"
        #: The in-focus plane.
        self.plane = f"{sample}/edf/{plane}.zarr"
        #: Height of the in-focus plane in z.
        self.height = f"{sample}/edf/{plane}_height.tif"
        #: The transform from the reference cycle to this one.
        self.transform = f"{sample}/register/cycle{{cycle}}.npz"
        #: Quality of the registration.
        self.transform_json = f"{sample}/register/cycle{{cycle}}.json"
        #: The registered multi-channel pyramid.
        self.image_tiff = f"{sample}/registration/{{sample}}.ome.tif"
        #: The registered multi-channel pyramid as OME-Zarr.
        self.image_zarr = f"{sample}/registration/{{sample}}.ome.zarr"
        #: The marker of each channel of the registered image, as MCMICRO reads it.
        self.image_markers = f"{sample}/registration/markers.csv"
        #: The registered channels of one cycle; the registered OME-Zarr shares its files.
        self.registered_cycle = f"{sample}/registration/cycle{{cycle}}.zarr"
        #: Subtraction of backgrounds from the channels of one cycle.
        self.subtraction_json = f"{sample}/registration/subtraction_cycle{{cycle}}.json"
        #: Overviews of the channels before, and of their backgrounds.
        self.subtraction = f"{sample}/registration/subtraction_cycle{{cycle}}.npz"
        self._name_reports()

    def _name_reports(self) -> None:
        """Set the templates of quality control, logs and records."""
        #: The report of all samples.
        self.report = f"{self.results}/report.html"
        #: All quality items.
        self.qc_json = f"{self.results}/qc.json"
        #: All quality items as a table.
        self.qc_csv = f"{self.results}/qc.csv"
        #: The verdict of each marker of each sample.
        self.trusted_markers = f"{self.results}/trusted_markers.csv"
        #: Logs of all rules.
        self.logs = Path(self.results) / "logs"
        #: All placements of all runs on a cluster; no rule's output.
        self.ledger = Path(self.results) / "placement" / "ledger.jsonl"
        #: Jobs and hours by account, device and rule, of the runs on a cluster; no rule's output.
        self.report_jobs = Path(self.results) / "report.jobs.csv"

    def qc(self, stage: str, suffix: str) -> str:
        """Return the quality numbers (json) or picture (png) of one stage and cycle."""
        return f"{self.results}/{{sample}}/qc/{stage}_cycle{{cycle}}.{suffix}"

    def log(self, rule: str, wildcards: str) -> str:
        """Return the log of a rule; ``wildcards`` is a template such as ``{sample}_{cycle}``."""
        return f"{self.logs}/{rule}/{wildcards}.log"

    def benchmark(self, rule: str, wildcards: str) -> str:
        """Return Snakemake's benchmark table of a rule."""
        return f"{self.results}/benchmarks/{rule}/{wildcards}.tsv"
