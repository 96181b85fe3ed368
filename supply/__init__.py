"""What is shipped, and what is known against it: the bill of materials (`make sbom`) and advisories (`make audit`)."""
