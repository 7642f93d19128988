"""Programs and images for the pages of docs/operators: public operators, built from source.

`python -m operators NAME` (or `make operator-NAME`) writes them to `.operators/NAME`. Users of the gateway do not need
them.
"""
