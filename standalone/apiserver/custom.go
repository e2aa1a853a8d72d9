package apiserver

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	extensionstyped "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/standalone/apiserver/crds"
)

// ensureCRDs creates or updates the custom resources of this program. Other custom
// resources stay as they are.
func ensureCRDs(ctx context.Context, config *rest.Config) error {
	client, err := extensionsclient.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client of custom resources: %w", err)
	}
	all, err := crds.All()
	if err != nil {
		return err
	}
	definitions := client.ApiextensionsV1().CustomResourceDefinitions()
	for _, want := range all {
		if err := ensureCRD(ctx, definitions, want); err != nil {
			return fmt.Errorf("ensure custom resource %s: %w", want.Name, err)
		}
	}
	return nil
}

// ensureCRD reads before it writes: to refuse the creation of an existing one, the server would first compile its
// rules.
func ensureCRD(
	ctx context.Context, definitions extensionstyped.CustomResourceDefinitionInterface,
	want *apiextensionsv1.CustomResourceDefinition,
) error {
	have, err := definitions.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = definitions.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && !equality.Semantic.DeepDerivative(want.Spec, have.Spec):
		have.Spec, have.Annotations = want.Spec, want.Annotations
		_, err = definitions.Update(ctx, have, metav1.UpdateOptions{})
	}
	return err
}
