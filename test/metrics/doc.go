// Package metrics tries the alerts of deploy/prometheus with Prometheus' own tool.
package metrics
