// Package attaching compares the attach/detach controller and the attacher with those of Kubernetes, and combines each
// with those of the other side.
package attaching
