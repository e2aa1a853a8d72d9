// Package modifier gives volumes the attributes of other VolumeAttributesClasses, as their claims ask for.
package modifier
