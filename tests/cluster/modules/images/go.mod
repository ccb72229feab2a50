module strata.local/cluster/images

go 1.26.0
