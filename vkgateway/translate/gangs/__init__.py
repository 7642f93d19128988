"""How a gang is said: readers of the marks that people and operators put on a tenant's pods, into one form."""

from vkgateway.translate.gangs.agree import agree
from vkgateway.translate.gangs.marks import Found, GangMarks, Kind, MarkError, Reference
from vkgateway.translate.gangs.ways import WAYS, read_marks, references

__all__ = ["WAYS", "Found", "GangMarks", "Kind", "MarkError", "Reference", "agree", "read_marks", "references"]
