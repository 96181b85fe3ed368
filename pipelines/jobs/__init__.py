"""Several jobs in one process: one stop, one view of how they do.

`kinds` are the jobs as the runner sees them, `runner` keeps them running, `progress` shows them, `alerts` says when
one lags or stops; `process` is what the command lines of single jobs share. None knows what a job does: that is in
`pipelines.catalogue`.
"""
