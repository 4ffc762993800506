# `tessera deploy cluster --infrastructure` reads these, as `terraform output -json` prints them.
output "name" {
  value = var.name
}

output "region" {
  value = var.region
}

output "zone" {
  value = local.zone
}

output "storage" {
  value = var.storage
}

output "vpc_id" {
  value = aws_vpc.this.id
}

output "private_subnets" {
  value = { for zone, subnet in aws_subnet.private : zone => subnet.id }
}

output "public_subnets" {
  value = { for zone, subnet in aws_subnet.public : zone => subnet.id }
}

output "service_role_arns" {
  value = { for key, role in aws_iam_role.service : key => role.arn }
}

output "pod_role_arns" {
  value = { for key, role in aws_iam_role.pod : key => role.arn }
}

output "bucket" {
  value = try(coalesce(local.bucket), "")
}

output "storage_security_groups" {
  value = aws_security_group.storage[*].id
}

# What a persistent volume of the storage's CSI driver needs; "" where it has no such thing.
output "file_system" {
  value = {
    id           = try(coalesce(one(aws_fsx_lustre_file_system.this[*].id), one(aws_efs_file_system.this[*].id)), "")
    dns_name     = try(coalesce(one(aws_fsx_lustre_file_system.this[*].dns_name)), "")
    mount_name   = try(coalesce(one(aws_fsx_lustre_file_system.this[*].mount_name)), "")
    access_point = try(coalesce(one(aws_efs_access_point.this[*].id)), "")
    gib          = var.storage == "fsx" ? var.fsx_capacity_gib : 1024
  }
}
