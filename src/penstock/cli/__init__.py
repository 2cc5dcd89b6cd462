"""The command line: one file per noun. Nothing here imports pyarrow or rich before a command runs."""
