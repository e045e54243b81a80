"""Documents of files: JSON lines, Parquet, WARC and WET, plain text, tar; gzip and zstd."""
