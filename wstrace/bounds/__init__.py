"""The worst case of a site: by its rule, by its source, or fitted to the requests seen."""
