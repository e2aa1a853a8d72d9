package guard

import (
	"context"
	"fmt"
	"io"
	"strings"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	api "k8s.io/kubernetes/pkg/apis/core"

	"volplane.dev/volplane/internal/volume"
)

// DataPluginName is the name of the plugin in the chain.
const DataPluginName = "DataGuard"

// RegisterData adds the plugin that refuses objects that would give a user other data
// than requested.
func RegisterData(plugins *admission.Plugins) {
	plugins.Register(DataPluginName, func(io.Reader) (admission.Interface, error) {
		return &data{Handler: admission.NewHandler(admission.Create, admission.Update)}, nil
	})
}

// data is a mutating plugin that changes nothing. As such it receives objects before the server drops unsupported
// fields: a claim without its source would get an empty volume.
type data struct{ *admission.Handler }

var _ admission.MutationInterface = (*data)(nil)

// Admit refuses claims whose source the server would drop silently, and volumes with an
// invalid handle.
func (d *data) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	create := a.GetOperation() == admission.Create
	var all field.ErrorList
	switch o := a.GetObject().(type) {
	case *api.PersistentVolumeClaim:
		all = sources(o, create)
	case *api.PersistentVolume:
		all = handles(o, create)
	case *api.Pod:
		all = templates(o, create)
	}
	if len(all) == 0 {
		return nil
	}
	return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), all)
}

func sources(c *api.PersistentVolumeClaim, create bool) field.ErrorList {
	all := elsewhere(&c.Spec, field.NewPath("spec"))
	// The server does not drop the source of an existing claim.
	if create {
		all = append(all, unknown(&c.Spec, field.NewPath("spec"))...)
	}
	return all
}

// templates checks the claim templates of a Pod, which are immutable.
func templates(p *api.Pod, create bool) field.ErrorList {
	var all field.ErrorList
	for i := range p.Spec.Volumes {
		if e := p.Spec.Volumes[i].Ephemeral; create && e != nil && e.VolumeClaimTemplate != nil {
			at := field.NewPath("spec", "volumes").Index(i).Child("ephemeral", "volumeClaimTemplate", "spec")
			all = append(all, elsewhere(&e.VolumeClaimTemplate.Spec, at)...)
			all = append(all, unknown(&e.VolumeClaimTemplate.Spec, at)...)
		}
	}
	return all
}

// elsewhere refuses a source in another namespace.
func elsewhere(s *api.PersistentVolumeClaimSpec, at *field.Path) field.ErrorList {
	ref := s.DataSourceRef
	if ref == nil || ref.Namespace == nil || *ref.Namespace == "" {
		return nil
	}
	return field.ErrorList{field.Forbidden(at.Child("dataSourceRef", "namespace"),
		fmt.Sprintf("a source in another namespace is not supported, and without it the volume would be empty: copy %s %s "+
			"into the claim's namespace first", ref.Kind, ref.Name))}
}

// unknown refuses a source that Kubernetes accepts only as dataSourceRef.
func unknown(s *api.PersistentVolumeClaimSpec, at *field.Path) field.ErrorList {
	from := s.DataSource
	if from == nil || s.DataSourceRef != nil {
		return nil
	}
	group := ""
	if from.APIGroup != nil {
		group = *from.APIGroup
	}
	if from.Kind == "PersistentVolumeClaim" && group == "" ||
		from.Kind == volume.KindSnapshot && group == volume.GroupSnapshot {
		return nil
	}
	return field.ErrorList{field.Forbidden(at.Child("dataSource"),
		fmt.Sprintf("a %s is not supported as a source, and without it the volume would be empty: name it as "+
			"dataSourceRef", from.Kind))}
}

// handles refuses volume handles that would break lines or names that contain them.
// Handles are immutable.
func handles(v *api.PersistentVolume, create bool) field.ErrorList {
	if !create || v.Spec.CSI == nil || !strings.ContainsFunc(v.Spec.CSI.VolumeHandle, unicode.IsControl) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("spec", "csi", "volumeHandle"), v.Spec.CSI.VolumeHandle,
		"no driver gives ids with control characters")}
}
