// Package attaching compares the attach/detach controller and the attacher with those of Kubernetes, and has each work
// with those of the other side.
package attaching
