// Package clientset gives tests a client of an API that only keeps objects.
package clientset

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
)

// New returns a client of an API that has these objects. It does not know who has written each field, as the one of
// fake.NewClientset does: no test here asks for that, and it took half of the processor time of the tests of kube.
func New(objects ...runtime.Object) *fake.Clientset { return fake.NewSimpleClientset(objects...) }
