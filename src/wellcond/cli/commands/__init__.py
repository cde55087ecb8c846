"""The commands, a file for each group: a new one is a new file here, a function with `@command` of `wellcond.cli.app`.

Everything that imports torch is imported inside the commands, so that --help and the lists answer at once.
"""
