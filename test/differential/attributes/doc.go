// Package attributes compares what changes the attributes of volumes with the resizer of Kubernetes.
package attributes
