"""The registered image in a browser: what is shown of a results folder, and the server."""
