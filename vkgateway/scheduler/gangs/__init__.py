"""Readers of gang marks: annotations, labels and fields of many integrations, read into one model."""

from vkgateway.scheduler.gangs.integrations import INTEGRATIONS, gang_references, read_marks
from vkgateway.scheduler.gangs.marks import FoundObjects, GangMarks, Kind, MarkError, Reference, merge_marks

__all__ = [
    "INTEGRATIONS",
    "FoundObjects",
    "GangMarks",
    "Kind",
    "MarkError",
    "Reference",
    "gang_references",
    "merge_marks",
    "read_marks",
]
