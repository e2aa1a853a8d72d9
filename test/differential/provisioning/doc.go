// Package provisioning compares the binder, the protection of objects and the provisioner with those of Kubernetes, and
// combines each with those of the other side.
package provisioning
