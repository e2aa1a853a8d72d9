package manifest

import (
	"bytes"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// YAML returns objects as YAML documents for kubectl, without empty fields.
func YAML(objects []runtime.Object) ([]byte, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme,
		storagev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("print manifests: %w", err)
		}
	}
	var out bytes.Buffer
	for _, o := range objects {
		document, err := document(scheme, o)
		if err != nil {
			return nil, fmt.Errorf("print manifests: %w", err)
		}
		out.WriteString("---\n")
		out.Write(document)
	}
	return out.Bytes(), nil
}

func document(scheme *runtime.Scheme, o runtime.Object) ([]byte, error) {
	kinds, _, err := scheme.ObjectKinds(o)
	if err != nil {
		return nil, err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	fields["apiVersion"], fields["kind"] = kinds[0].GroupVersion().String(), kinds[0].Kind
	delete(fields, "status")
	prune(fields)
	return yaml.Marshal(fields)
}

// prune removes empty fields, which Go prints although they have no meaning. An emptyDir has a
// meaning although it is empty.
func prune(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			prune(e)
		}
	case map[string]any:
		for name, e := range v {
			prune(e)
			if m, ok := e.(map[string]any); e == nil || e == "" || ok && len(m) == 0 && name != "emptyDir" {
				delete(v, name)
			}
		}
	}
}
