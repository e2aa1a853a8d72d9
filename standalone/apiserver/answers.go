package apiserver

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Answers fails if the server does not respond at its address, as others reach it, or reports that it is not alive. An
// etcd that others run is not a part of it, and a server that refuses requests under load is alive.
func (s *Server) Answers(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: "https://" + s.address, TLSClientConfig: rest.TLSClientConfig{CAData: s.ca.CertPEM()},
	})
	if err != nil {
		return fmt.Errorf("client of the API server: %w", err)
	}
	live := client.Discovery().RESTClient().Get().AbsPath("/livez")
	if _, own := s.store.(embedded); !own {
		live.Param("exclude", "etcd")
	}
	if err := live.Do(ctx).Error(); err != nil && !apierrors.IsTooManyRequests(err) {
		return fmt.Errorf("the API server does not live at %s: %w", s.address, err)
	}
	return nil
}
