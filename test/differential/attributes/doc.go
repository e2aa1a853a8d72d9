// Package attributes compares volplane's modifier with Kubernetes' resizer.
package attributes
