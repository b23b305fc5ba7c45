"""Benchmarks, run from a clone of the source: `python -m benchmarks NAME`.

`__main__` holds the commands. Each of the other modules measures one thing and returns its figures, which write
themselves as a table; `common`, `floor`, `methods_table` and `one_method` serve others. `same_results` is a program of
its own.
"""
