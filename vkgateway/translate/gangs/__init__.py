"""How a gang is said: readers of the marks that people and operators put on a tenant's pods, into one form."""

from vkgateway.translate.gangs.integrations import INTEGRATIONS, gang_references, read_marks
from vkgateway.translate.gangs.marks import FoundObjects, GangMarks, Kind, MarkError, Reference
from vkgateway.translate.gangs.merging import merge_marks

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
