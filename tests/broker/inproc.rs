// The broker of one process.
