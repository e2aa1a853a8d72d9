package driver

import (
	"io"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	restfake "k8s.io/client-go/rest/fake"
)

// customAPI answers requests for custom resources, which the fake API does not have, by path.
type customAPI map[string]string

// RoundTrip answers one request.
func (c customAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	body, known := c[r.URL.Path]
	out := &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body)), Request: r}
	if !known {
		out.StatusCode = http.StatusNotFound
	}
	return out, nil
}

// withCustom is the fake API with custom resources.
type withCustom struct {
	*fake.Clientset
	custom customAPI
}

func (w withCustom) CoreV1() typedcorev1.CoreV1Interface {
	return coreWithCustom{w.Clientset.CoreV1(), w.custom}
}

type coreWithCustom struct {
	typedcorev1.CoreV1Interface
	custom customAPI
}

func (w coreWithCustom) RESTClient() rest.Interface {
	return &restfake.RESTClient{
		NegotiatedSerializer: scheme.Codecs.WithoutConversion(), GroupVersion: schema.GroupVersion{Version: "v1"},
		Client: &http.Client{Transport: w.custom},
	}
}
