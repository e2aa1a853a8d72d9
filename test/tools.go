//go:build tools

package test

import _ "k8s.io/kubernetes/cmd/kubectl" // the tests' kubectl is built from here
