package manifest

import (
	"encoding/base64"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	volumeCertificates = "certificates"
	mountCertificates  = "/certificates"
	// blocksPort is where changed blocks are served, and blocksHealth where the kubelet asks whether they are.
	blocksPort, blocksHealth = 50051, 50052
)

// blocksContainer returns the container that serves changed blocks.
func (o Options) blocksContainer() corev1.Container {
	c := o.volplane(containerBlocks, "snapshot-metadata", "--csi-address="+socket,
		"--tls-cert="+mountCertificates+"/"+corev1.TLSCertKey, "--tls-key="+mountCertificates+"/"+corev1.TLSPrivateKeyKey,
		fmt.Sprint("--port=", blocksPort), fmt.Sprint("--http-endpoint=:", blocksHealth))
	c.Ports = []corev1.ContainerPort{{Name: "blocks", ContainerPort: blocksPort, Protocol: corev1.ProtocolTCP}}
	c.ReadinessProbe = &corev1.Probe{ProbeHandler: health("/health", blocksHealth), PeriodSeconds: 10, TimeoutSeconds: 5}
	c.VolumeMounts = append(c.VolumeMounts,
		corev1.VolumeMount{Name: volumeCertificates, MountPath: mountCertificates, ReadOnly: true})
	return c
}

// certificates returns the volume with the certificate of the service of changed blocks.
func (o Options) certificates() []corev1.Volume {
	if o.Blocks == nil {
		return nil
	}
	return []corev1.Volume{{Name: volumeCertificates, VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: o.Blocks.Secret},
	}}}
}

// blocksObjects returns the Service in front of the Pods that serve changed blocks, and what describes it to clients.
func (o Options) blocksObjects() []runtime.Object {
	part := partController
	if o.Shape == DaemonSet {
		part = partNode
	}
	return []runtime.Object{
		&corev1.Service{ObjectMeta: o.meta(o.blocks(), part), Spec: corev1.ServiceSpec{
			Selector: o.selecting(part),
			Ports: []corev1.ServicePort{{
				Name: "blocks", Port: blocksPort, TargetPort: intstr.FromString("blocks"), Protocol: corev1.ProtocolTCP,
			}},
		}},
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "cbt.storage.k8s.io/v1beta1", "kind": "SnapshotMetadataService",
			"metadata": map[string]any{"name": o.Driver},
			"spec": map[string]any{
				"address": fmt.Sprint(o.BlocksHost(), ":", blocksPort), "audience": o.Driver,
				"caCert": base64.StdEncoding.EncodeToString([]byte(o.Blocks.CA)),
			},
		}},
	}
}
