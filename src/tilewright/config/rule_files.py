"""The files that rules read: path templates expanded over samples, cycles and channels."""

from collections.abc import Callable, Iterable
from typing import Any

from tilewright.config.experiment import Experiment
from tilewright.config.layout import Layout
from tilewright.config.rules import STAGES

#: What Snakemake calls with the wildcards of a job.
InputFunction = Callable[[Any], list[str] | str]


class RuleFiles:
    """Inputs of rules; a template holds ``{sample}``, ``{cycle}`` and ``{channel}``."""

    def __init__(self, experiment: Experiment, layout: Layout) -> None:
        self.experiment, self.layout = experiment, layout
        absent = {"stitched"}
        if experiment.settings.stitched:
            absent = set(STAGES) - {"stitched", "register", "subtract"}
        elif not experiment.settings.plane_of_deconvolved:
            absent.add("deconvolve")
        #: Stages with quality control, in the order of the workflow.
        self.stages = [stage for stage in STAGES if stage not in absent]

    def planes(
        self, template: str, cycles: Iterable[int] | None = None, sample: str | None = None
    ) -> list[str]:
        """Expand a template over samples (or one), and the channels of all cycles or some."""
        cycles = list(self.experiment.cycles if cycles is None else cycles)
        return [
            template.format(sample=name, cycle=channel.cycle, channel=channel.channel)
            for name in ([sample] if sample else self.experiment.samples)
            for channel in self.experiment.channels
            if channel.cycle in cycles
        ]

    def channels_of_cycle(self, wildcards: Any) -> list[str]:
        """Return the channels of the job's cycle."""
        return [one.channel for one in self.experiment.channels_of(int(wildcards.cycle))]

    def psf(self, wildcards: Any) -> dict[str, str]:
        """Return the measured PSF of the job's channel, where the configuration names one."""
        return self.experiment.files("deconvolve", wildcards)

    def flat_fields(self, wildcards: Any) -> dict[str, list[str]]:
        """Return the flat-fields and dark-fields that the configuration names, one per channel."""
        found = [
            self.experiment.files("illumination", {**dict(wildcards.items()), "channel": name})
            for name in self.channels_of_cycle(wildcards)
        ]
        return {key: [files[key] for files in found] for key in found[0]}

    def of_cycle(self, template: str) -> InputFunction:
        """Return an input function: a template over the channels of the job's cycle."""
        return lambda wildcards: self.planes(template, [int(wildcards.cycle)], wildcards.sample)

    def calibration(self, wildcards: Any) -> dict[str, str]:
        """Return what rule ``calibrate`` makes of the job's scan and cycle."""
        layout = self.layout
        of = {"sample": self.experiment.scan_of(wildcards.sample)[0], "cycle": wildcards.cycle}
        files = {
            "flat": layout.flat,
            "dark": layout.dark,
            "numbers": layout.illumination_json,
            "positions": layout.positions,
            "edges": layout.edges,
        }
        return {key: template.format(**of) for key, template in files.items()}

    def of_image_channels(self, template: str) -> InputFunction:
        """Return an input function: a template over the image's channels of the job's cycle."""
        return lambda wildcards: [
            template.format(**{**entry, "sample": wildcards.sample})
            for entry in self.experiment.image_table(int(wildcards.cycle))
        ]

    def of_backgrounds(self, template: str, cycles: Iterable[int] | None = None) -> InputFunction:
        """Return an input function: a template over what is subtracted, of all cycles or some."""
        some = list(self.experiment.cycles if cycles is None else cycles)
        return lambda wildcards: [
            template.format(**{**entry["background"], "sample": wildcards.sample})
            for entry in self.experiment.image_table(int(wildcards.cycle))
            if "background" in entry and entry["background"]["cycle"] in some
        ]

    def subtracted(self, cycle: int) -> list[str]:
        """Return the channels of a cycle of which a background is subtracted."""
        return [e["channel"] for e in self.experiment.image_table(cycle) if "background" in e]

    def of_moving_cycle(self, template: str) -> InputFunction:
        """Return an input function: a template, nothing for the reference cycle."""
        return lambda wildcards: (
            template.format(**wildcards)
            if int(wildcards.cycle) in self.experiment.moving_cycles
            else []
        )

    def reference_channel(self, wildcards: Any) -> str:
        """Return the reference channel of the job's cycle."""
        return self.experiment.reference_channels[int(wildcards.cycle)]

    def of_reference_channel(self, template: str) -> InputFunction:
        """Return an input function: a template for the reference channel of the job's cycle."""
        return lambda wildcards: template.format(
            sample=wildcards.sample,
            cycle=wildcards.cycle,
            channel=self.reference_channel(wildcards),
        )

    @property
    def reference_plane(self) -> str:
        """The in-focus plane of the reference channel and cycle of a sample."""
        cycle = self.experiment.reference_cycle
        channel = self.experiment.reference_channels[cycle]
        return self.layout.plane.replace("{cycle}", str(cycle)).replace("{channel}", channel)

    def registered_images(self) -> list[str]:
        """Return the final image of each sample, in all its files."""
        return [
            template.format(sample=sample)
            for sample in self.experiment.samples
            for template in (
                self.layout.image_tiff,
                self.layout.image_zarr,
                self.layout.image_markers,
            )
        ]

    def stack_quality(self) -> list[str]:
        """Return the quality numbers of stacks, which are measured before the stacks are gone."""
        settings = self.experiment.settings
        if settings.output.keep == "stacks" or settings.stitched:
            return []
        return self._quality(["stitch"], "json")

    def stage_quality(self, suffix: str) -> list[str]:
        """Return the quality files of all stages, samples and cycles."""
        return self._quality(self.stages, suffix)

    def quality(self) -> list[str]:
        """Return what the target ``qc`` makes."""
        layout = self.layout
        return [layout.report, layout.qc_json, layout.qc_csv, layout.trusted_markers]

    def _quality(self, stages: Iterable[str], suffix: str) -> list[str]:
        experiment = self.experiment
        only = {
            "register": experiment.moving_cycles,
            "subtract": [c for c in experiment.image_cycles if self.subtracted(c)],
        }
        return [
            self.layout.qc(stage, suffix).format(sample=sample, cycle=cycle)
            for sample in experiment.samples
            for cycle in experiment.cycles
            for stage in stages
            if cycle in only.get(stage, experiment.cycles)
        ]
