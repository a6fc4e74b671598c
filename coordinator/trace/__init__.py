"""What rounds did, one record a round, and those who look at it: files, `dlite top`, `dlite tune`.

`record` is a round, `format` how it is written, `sums` and `feed` take rounds as they end, `writer` and
`reader` are files; `replay` hands a trace to a fresh tuner, `explain` shows what a tuner believes, `top`
is the live view.
"""
