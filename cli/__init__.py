"""`drystone`: the command line. One module per command, wired in `main`."""
