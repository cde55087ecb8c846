"""The commands, one a file: a new one is a new file here, which registers on `wellcond.cli.app`.

Everything that imports torch is imported inside the commands, so that --help and the lists answer at once.
"""
