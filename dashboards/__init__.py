"""What Prometheus and Grafana have of Strata: the exporters' metrics, dashboards as code, and the pages about both."""
