// Package kube lets Kubernetes be the judge: its kube-controller-manager runs
// beside, or in the place of, controllers of volplane, over the same API
// server.
package kube
